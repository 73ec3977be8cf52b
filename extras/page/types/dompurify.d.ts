import purify from "dompurify";
export default purify;
